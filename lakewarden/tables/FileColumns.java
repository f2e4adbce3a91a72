package lakewarden;

import java.io.FileOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;

import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.BitVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.IntVector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.complex.ListVector;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.arrow.vector.types.Types;
import org.apache.arrow.vector.types.pojo.FieldType;

/** Writes data files as one Arrow stream in a local file, with the columns of model.FileSet, from which Python plans. */
public class FileColumns {
  private static final int BATCH = 65536;

  private RootAllocator allocator;
  private IntVector partition;
  private VarCharVector path;
  private VarCharVector format;
  private BigIntVector bytes;
  private BigIntVector records;
  private BigIntVector sequence;
  private BigIntVector commit;
  private BigIntVector firstRowId;
  private IntVector positionDeletes;
  private IntVector equalityDeletes;
  private BitVector encrypted;
  private IntVector rowGroups;
  private IntVector sortOrder;
  private ListVector deletes;
  private VectorSchemaRoot root;
  private FileOutputStream out;
  private ArrowStreamWriter writer;
  private int rows = 0;

  /** Used to load the class; it writes nothing. */
  public FileColumns() {}

  public FileColumns(String arrowPath) throws Exception {
    allocator = new RootAllocator();
    partition = new IntVector("partition", allocator);
    path = new VarCharVector("path", allocator);
    format = new VarCharVector("format", allocator);
    bytes = new BigIntVector("bytes", allocator);
    records = new BigIntVector("records", allocator);
    sequence = new BigIntVector("sequence_number", allocator);
    commit = new BigIntVector("commit_number", allocator);
    firstRowId = new BigIntVector("first_row_id", allocator);
    positionDeletes = new IntVector("position_deletes", allocator);
    equalityDeletes = new IntVector("equality_deletes", allocator);
    encrypted = new BitVector("encrypted", allocator);
    rowGroups = new IntVector("row_groups", allocator);
    sortOrder = new IntVector("sort_order_id", allocator);
    deletes = ListVector.empty("deletes", allocator);
    deletes.addOrGetVector(FieldType.nullable(Types.MinorType.INT.getType()));
    root = new VectorSchemaRoot(vectors());
    out = new FileOutputStream(arrowPath);
    writer = new ArrowStreamWriter(root, null, out.getChannel());
    writer.start();
  }

  private List vectors() {
    return Arrays.asList(
        new FieldVector[] {
          partition, path, format, bytes, records, sequence, commit, firstRowId, positionDeletes, equalityDeletes,
          encrypted, rowGroups, sortOrder, deletes
        });
  }

  /** Add one file. `places` are the indexes of the delete files that apply to it; null for values that a format does not provide. */
  public void add(
      int partitionId,
      String name,
      String kind,
      long size,
      long count,
      long sequenceNumber,
      long commitNumber,
      Long rowId,
      int byPosition,
      int byEquality,
      boolean isEncrypted,
      int groups,
      Integer order,
      int[] places)
      throws Exception {
    partition.setSafe(rows, partitionId);
    path.setSafe(rows, name.getBytes(StandardCharsets.UTF_8));
    format.setSafe(rows, kind.getBytes(StandardCharsets.UTF_8));
    bytes.setSafe(rows, size);
    records.setSafe(rows, count);
    sequence.setSafe(rows, sequenceNumber);
    commit.setSafe(rows, commitNumber);
    if (rowId == null) {
      firstRowId.setNull(rows);
    } else {
      firstRowId.setSafe(rows, rowId.longValue());
    }
    positionDeletes.setSafe(rows, byPosition);
    equalityDeletes.setSafe(rows, byEquality);
    encrypted.setSafe(rows, isEncrypted ? 1 : 0);
    rowGroups.setSafe(rows, groups);
    if (order == null) {
      sortOrder.setNull(rows);
    } else {
      sortOrder.setSafe(rows, order.intValue());
    }
    int start = deletes.startNewValue(rows);
    for (int i = 0; i < places.length; i++) {
      ((IntVector) deletes.getDataVector()).setSafe(start + i, places[i]);
    }
    deletes.endValue(rows, places.length);
    rows++;
    if (rows == BATCH) {
      flush();
    }
  }

  /** Finish the stream. It is complete only after this call. */
  public void end() throws Exception {
    flush();
    writer.end();
  }

  private void flush() throws Exception {
    List all = vectors();
    for (int i = 0; i < all.size(); i++) {
      ((FieldVector) all.get(i)).setValueCount(rows);
    }
    root.setRowCount(rows);
    writer.writeBatch();
    root.clear();
    rows = 0;
  }

  public void close() throws Exception {
    writer.close();
    root.close();
    out.close();
    allocator.close();
  }
}
