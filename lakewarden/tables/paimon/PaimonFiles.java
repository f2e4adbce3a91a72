package lakewarden;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

import org.apache.paimon.CoreOptions;
import org.apache.paimon.Snapshot;
import org.apache.paimon.data.BinaryRow;
import org.apache.paimon.deletionvectors.append.AppendDeleteFileMaintainer;
import org.apache.paimon.deletionvectors.append.BaseAppendDeleteFileMaintainer;
import org.apache.paimon.format.FileFormat;
import org.apache.paimon.format.FormatWriter;
import org.apache.paimon.format.SimpleColStats;
import org.apache.paimon.format.SimpleStatsExtractor;
import org.apache.paimon.fs.Path;
import org.apache.paimon.fs.PositionOutputStream;
import org.apache.paimon.fs.local.LocalFileIO;
import org.apache.paimon.index.DeletionVectorMeta;
import org.apache.paimon.index.IndexFileHandler;
import org.apache.paimon.io.CompactIncrement;
import org.apache.paimon.io.DataFileMeta;
import org.apache.paimon.io.DataFilePathFactory;
import org.apache.paimon.io.DataIncrement;
import org.apache.paimon.manifest.FileKind;
import org.apache.paimon.manifest.FileSource;
import org.apache.paimon.manifest.IndexManifestEntry;
import org.apache.paimon.manifest.ManifestEntry;
import org.apache.paimon.operation.BaseAppendFileStoreWrite;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.paimon.statistics.SimpleColStatsCollector;
import org.apache.paimon.stats.SimpleStats;
import org.apache.paimon.stats.SimpleStatsConverter;
import org.apache.paimon.table.BucketMode;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.sink.CommitMessageImpl;
import org.apache.paimon.types.DataField;
import org.apache.paimon.types.DataTypeRoot;
import org.apache.paimon.types.RowType;
import org.apache.paimon.utils.InternalRowUtils;
import org.apache.paimon.utils.Pair;
import org.apache.paimon.utils.StatsCollectorFactories;

/**
 * Reports the data files of a snapshot to Python in bulk, and commits their replacements. A "place" is a
 * partition and a bucket: files of two places are never mixed. Compiled by Janino, so there are no lambdas and
 * no generics.
 */
public class PaimonFiles {
  private static final ObjectMapper JSON = new ObjectMapper();

  /** The files of one snapshot. Python sees them as Arrow; the library's own objects stay here for the commit. */
  public static final class Scan {
    public final Map entries = new HashMap();
    public final Map placeOf = new HashMap();
    public final List places = new ArrayList();
    // Several threads add to it at once: groups are written and committed in parallel.
    public final Map outputs = new ConcurrentHashMap();
    final List described = new ArrayList();
    final List deletes = new ArrayList();
    final Set struck = new HashSet();
    final Snapshot snapshot;
    final boolean ordered;

    Scan(Snapshot snapshot, boolean ordered) {
      this.snapshot = snapshot;
      this.ordered = ordered;
    }

    /** Whether rows of a bucket are read in the order of its files. */
    public boolean ordered() {
      return ordered;
    }

    public String places() throws Exception {
      return JSON.writeValueAsString(described);
    }

    public String deletes() throws Exception {
      return JSON.writeValueAsString(deletes);
    }

    /** Keep only the files that the plan names, so that a table with millions of files does not stay in memory. */
    public void retain(String paths) throws Exception {
      Set kept = new HashSet((List) JSON.readValue(paths, List.class));
      entries.keySet().retainAll(kept);
      placeOf.keySet().retainAll(kept);
    }

    public DataFileMeta file(String path) {
      Object found = entries.get(path);
      if (found == null) {
        throw new IllegalArgumentException("not in this scan: " + path);
      }
      return ((ManifestEntry) found).file();
    }

    public DataFileMeta output(String path) {
      Object found = outputs.get(path);
      if (found == null) {
        throw new IllegalArgumentException("not an output of this run: " + path);
      }
      return (DataFileMeta) found;
    }

    public Place place(int number) {
      return (Place) places.get(number);
    }
  }

  public static final class Place {
    public final BinaryRow partition;
    public final int bucket;
    public final int totalBuckets;
    public final DataFilePathFactory paths;

    Place(BinaryRow partition, int bucket, int totalBuckets, DataFilePathFactory paths) {
      this.partition = partition;
      this.bucket = bucket;
      this.totalBuckets = totalBuckets;
      this.paths = paths;
    }
  }

  // ---------------------------------------------------------------- reading

  /** Writes every live data file of a snapshot, place by place in the order of its rows, as one Arrow stream in a local file. */
  public Scan scan(FileStoreTable table, long snapshotId, String arrowPath) throws Exception {
    Snapshot snapshot = table.snapshotManager().snapshot(snapshotId);
    List files = new ArrayList(table.store().newScan().withSnapshot(snapshot).plan().files());
    Collections.sort(files, new InOrder());
    boolean fixed = table.bucketMode() == BucketMode.HASH_FIXED;
    Scan scan = new Scan(snapshot, fixed && table.coreOptions().bucketAppendOrdered());
    Map struck = vectors(table, snapshot, scan);
    FileColumns columns = new FileColumns(arrowPath);
    Map numbers = new HashMap();
    Map counts = new HashMap();
    try {
      for (Iterator each = files.iterator(); each.hasNext(); ) {
        ManifestEntry entry = (ManifestEntry) each.next();
        Integer number = Integer.valueOf(number(table, scan, numbers, entry));
        Place place = scan.place(number.intValue());
        String path = place.paths.toPath(entry.file()).toString();
        scan.entries.put(path, entry);
        scan.placeOf.put(path, number);
        Integer before = (Integer) counts.get(number);
        int ordinal = before == null ? 0 : before.intValue();
        counts.put(number, Integer.valueOf(ordinal + 1));
        Object vector = struck.get(key(place.partition, place.bucket, entry.file().fileName()));
        if (vector != null) {
          scan.struck.add(path);
        }
        add(columns, number.intValue(), path, ordinal, entry.file(), (Integer) vector);
      }
      columns.end();
    } finally {
      columns.close();
    }
    return scan;
  }

  /** By partition, by bucket, and then in the order of their rows. */
  private static final class InOrder implements Comparator {
    public int compare(Object left, Object right) {
      ManifestEntry one = (ManifestEntry) left;
      ManifestEntry other = (ManifestEntry) right;
      int found = Long.compare(one.file().minSequenceNumber(), other.file().minSequenceNumber());
      if (found == 0) {
        found = Long.compare(one.file().creationTimeEpochMillis(), other.file().creationTimeEpochMillis());
      }
      return found == 0 ? one.file().fileName().compareTo(other.file().fileName()) : found;
    }
  }

  private static List key(BinaryRow partition, int bucket, String rest) {
    return Arrays.asList(new Object[] {partition, Integer.valueOf(bucket), rest});
  }

  private static int number(FileStoreTable table, Scan scan, Map known, ManifestEntry entry) throws Exception {
    List key = key(entry.partition(), entry.bucket(), "");
    Integer number = (Integer) known.get(key);
    if (number == null) {
      number = Integer.valueOf(scan.places.size());
      DataFilePathFactory paths =
          table.store().pathFactory().createDataFilePathFactory(entry.partition(), entry.bucket());
      scan.places.add(new Place(entry.partition(), entry.bucket(), entry.totalBuckets(), paths));
      scan.described.add(describe(table, entry));
      known.put(key, number);
    }
    return number.intValue();
  }

  private static Map describe(FileStoreTable table, ManifestEntry entry) {
    String path = table.store().pathFactory().getPartitionString(entry.partition());
    path = path.endsWith("/") ? path.substring(0, path.length() - 1) : path;
    boolean unaware = table.bucketMode() == BucketMode.BUCKET_UNAWARE;
    RowType type = table.store().partitionType();
    List values = new ArrayList();
    for (int i = 0; i < type.getFieldCount(); i++) {
      Object value = InternalRowUtils.get(entry.partition(), i, type.getTypeAt(i));
      values.add(value == null || value instanceof Number ? value : value.toString());
    }
    Map row = new HashMap();
    row.put("path", unaware ? path : (path.isEmpty() ? "" : path + "/") + "bucket-" + entry.bucket());
    row.put("values", values);
    return row;
  }

  /**
   * The number of the deletion vector by partition, bucket and data file; the vectors are described in the
   * scan. If the table has vectors switched off, readers see the deleted rows: such a vector has no number, and
   * its file must stay.
   */
  private static Map vectors(FileStoreTable table, Snapshot snapshot, Scan scan) throws Exception {
    Map found = new HashMap();
    if (snapshot.indexManifest() == null) {
      return found;
    }
    boolean inForce = table.coreOptions().deletionVectorsEnabled();
    IndexFileHandler handler = table.store().newIndexFileHandler();
    for (Iterator each = handler.scan(snapshot, "DELETION_VECTORS").iterator(); each.hasNext(); ) {
      IndexManifestEntry entry = (IndexManifestEntry) each.next();
      String path = handler.filePath(entry).toString();
      for (Iterator of = entry.indexFile().dvRanges().values().iterator(); of.hasNext(); ) {
        DeletionVectorMeta vector = (DeletionVectorMeta) of.next();
        found.put(
            key(entry.partition(), entry.bucket(), vector.dataFileName()),
            Integer.valueOf(inForce ? scan.deletes.size() : -1));
        if (!inForce) {
          continue;
        }
        Map row = new HashMap();
        row.put("path", path);
        row.put("offset", Integer.valueOf(vector.offset()));
        row.put("length", Integer.valueOf(vector.length()));
        row.put("records", vector.cardinality());
        scan.deletes.add(row);
      }
    }
    return found;
  }

  /** `vector` is the index of its deletion vector, negative for one without an index, null if it has none. */
  private static void add(FileColumns columns, int place, String path, int ordinal, DataFileMeta file, Integer vector)
      throws Exception {
    boolean numbered = vector != null && vector.intValue() >= 0;
    columns.add(
        place,
        path,
        file.fileFormat(),
        file.fileSize(),
        file.rowCount(),
        ordinal,
        0L,
        null,
        vector == null ? 0 : 1,
        0,
        false,
        1,
        null,
        numbered ? new int[] {vector.intValue()} : new int[0]);
  }

  /** The newest schema with which one of these files was written. */
  public String schemaOf(FileStoreTable table, Scan scan, String paths) throws Exception {
    long newest = 0;
    for (Iterator each = ((List) JSON.readValue(paths, List.class)).iterator(); each.hasNext(); ) {
      newest = Math.max(newest, scan.file((String) each.next()).schemaId());
    }
    return table.schemaManager().schema(newest).toString();
  }

  // ---------------------------------------------------------------- writing

  /** Writes a file without rows with Paimon's own writer: it shows how this schema is stored. */
  public void writeEmpty(FileStoreTable table, long schemaId, String path) throws Exception {
    RowType type = table.schemaManager().schema(schemaId).logicalRowType();
    FileFormat format = FileFormat.fromIdentifier("parquet", table.coreOptions().toConfiguration());
    PositionOutputStream out = LocalFileIO.create().newOutputStream(new Path(path), true);
    FormatWriter writer = format.createWriterFactory(type).create(out, "zstd");
    writer.close();
    out.close();
  }

  /** The paths of new data files, from the table's own path factory: [[place, name], ...] -> [path, ...]. */
  public String locations(FileStoreTable table, Scan scan, String request) throws Exception {
    String prefix = table.coreOptions().dataFilePrefix();
    List found = new ArrayList();
    for (Iterator each = ((List) JSON.readValue(request, List.class)).iterator(); each.hasNext(); ) {
      List pair = (List) each.next();
      Place place = scan.place(((Number) pair.get(0)).intValue());
      found.add(place.paths.newPathFromName(prefix + pair.get(1)).toString());
    }
    return JSON.writeValueAsString(found);
  }

  /** Reads the footers of outputs and describes them with Paimon's own statistics. */
  public void describeOutputs(FileStoreTable table, Scan scan, long schemaId, String outputs) throws Exception {
    RowType type = table.schemaManager().schema(schemaId).logicalRowType();
    CoreOptions options = table.coreOptions();
    SimpleColStatsCollector.Factory[] factories =
        StatsCollectorFactories.createStatsFactories(options.statsMode(), options, type.getFieldNames());
    SimpleStatsExtractor extractor =
        (SimpleStatsExtractor)
            FileFormat.fromIdentifier("parquet", options.toConfiguration())
                .createStatsExtractor(type, factories)
                .get();
    SimpleStatsConverter converter = new SimpleStatsConverter(type, options.statsDenseStore());
    for (Iterator each = ((List) JSON.readValue(outputs, List.class)).iterator(); each.hasNext(); ) {
      Map output = (Map) each.next();
      Path path = new Path((String) output.get("path"));
      if (scan.outputs.containsKey(path.toString())) {
        continue;
      }
      long bytes = ((Number) output.get("bytes")).longValue();
      long rows = ((Number) output.get("rows")).longValue();
      Pair found = extractor.extractWithFileInfo(table.fileIO(), path, bytes);
      long counted = ((SimpleStatsExtractor.FileInfo) found.getRight()).getRowCount();
      if (counted != rows) {
        throw new IllegalStateException(path + " has " + counted + " rows instead of " + rows);
      }
      SimpleColStats[] columns = (SimpleColStats[]) found.getLeft();
      forgetBounds(table, scan, type, columns, output);
      Pair stats = converter.toBinary(columns);
      Place place = scan.place(((Number) output.get("place")).intValue());
      DataFileMeta file =
          DataFileMeta.forAppend(
              path.getName(),
              bytes,
              rows,
              (SimpleStats) stats.getRight(),
              ((Number) output.get("min_sequence")).longValue(),
              ((Number) output.get("max_sequence")).longValue(),
              schemaId,
              Collections.EMPTY_LIST,
              null,
              FileSource.COMPACT,
              (List) stats.getLeft(),
              place.paths.isExternalPath() ? path.toString() : null,
              null,
              null);
      scan.outputs.put(path.toString(), file);
    }
  }

  /**
   * Removes the bounds of floats that have a NaN, or may have one in copied pages: bounds leave NaN out, and
   * Paimon treats it as the largest number, so a filter would skip the file.
   */
  private static void forgetBounds(
      FileStoreTable table, Scan scan, RowType type, SimpleColStats[] columns, Map output) {
    List copied = (List) output.get("copied_from");
    List trusted = null;
    for (Iterator each = copied.iterator(); each.hasNext(); ) {
      List bounded = boundedFloats(table, scan.file((String) each.next()));
      if (trusted == null) {
        trusted = bounded;
      } else {
        trusted.retainAll(bounded);
      }
    }
    List nans = (List) output.get("nan_ids");
    for (int i = 0; i < columns.length; i++) {
      DataField field = (DataField) type.getFields().get(i);
      Integer id = Integer.valueOf(field.id());
      if (isFloat(field) && (trusted == null ? nans.contains(id) : !trusted.contains(id))) {
        columns[i] = new SimpleColStats(null, null, columns[i].nullCount());
      }
    }
  }

  private static boolean isFloat(DataField field) {
    DataTypeRoot root = field.type().getTypeRoot();
    return root == DataTypeRoot.FLOAT || root == DataTypeRoot.DOUBLE;
  }

  /** Least and greatest sequence number of each source: {path: [min, max]}. */
  public String sequenceNumbers(Scan scan, String paths) throws Exception {
    Map found = new HashMap();
    for (Iterator each = ((List) JSON.readValue(paths, List.class)).iterator(); each.hasNext(); ) {
      String path = (String) each.next();
      DataFileMeta file = scan.file(path);
      found.put(
          path,
          Arrays.asList(
              new Object[] {Long.valueOf(file.minSequenceNumber()), Long.valueOf(file.maxSequenceNumber())}));
    }
    return JSON.writeValueAsString(found);
  }

  /** Ids of float columns with bounds in the file's entry: Paimon states none if there is a NaN. */
  private static List boundedFloats(FileStoreTable table, DataFileMeta file) {
    List fields = table.schemaManager().schema(file.schemaId()).logicalRowType().getFields();
    BinaryRow least = file.valueStats().minValues();
    List stored = file.valueStatsCols();
    List found = new ArrayList();
    for (int i = 0; i < fields.size(); i++) {
      DataField field = (DataField) fields.get(i);
      int at = stored == null ? i : stored.indexOf(field.name());
      if (isFloat(field) && at >= 0 && at < least.getFieldCount() && !least.isNullAt(at)) {
        found.add(Integer.valueOf(field.id()));
      }
    }
    return found;
  }

  /** Rewrites files of one place with Paimon's own writer, in order: [[path, bytes, rows], ...]. Nothing is committed. */
  public String rewriteNatively(FileStoreTable table, Scan scan, String request) throws Exception {
    Map asked = (Map) JSON.readValue(request, Map.class);
    Place place = scan.place(((Number) asked.get("place")).intValue());
    Map options = new HashMap();
    options.put("write-only", "true");
    options.put("target-file-size", asked.get("target_bytes") + " b");
    FileStoreTable sized = (FileStoreTable) table.copy(options);
    List files = new ArrayList();
    for (Iterator each = ((List) asked.get("sources")).iterator(); each.hasNext(); ) {
      String path = (String) each.next();
      if (scan.struck.contains(path)) {
        // Its deleted rows would come back: only the kernel applies vectors.
        throw new IllegalStateException(path + " has a deletion vector");
      }
      files.add(scan.file(path));
    }
    BaseAppendFileStoreWrite write = (BaseAppendFileStoreWrite) sized.store().newWrite("lakewarden");
    List found = new ArrayList();
    try {
      List made = write.compactRewrite(place.partition, place.bucket, null, files);
      for (Iterator each = made.iterator(); each.hasNext(); ) {
        DataFileMeta file = (DataFileMeta) each.next();
        String path = place.paths.toPath(file).toString();
        scan.outputs.put(path, file);
        found.add(
            Arrays.asList(new Object[] {path, Long.valueOf(file.fileSize()), Long.valueOf(file.rowCount())}));
      }
    } finally {
      write.close();
    }
    return JSON.writeValueAsString(found);
  }

  /** The commit messages: for each place, the files to remove, with their deletion vectors, and the files to add. */
  public List messages(FileStoreTable table, Scan scan, String removed, String added) throws Exception {
    List leaving = (List) JSON.readValue(removed, List.class);
    Map before = byPlace(scan, leaving);
    Map struck = new HashMap();
    for (Iterator each = leaving.iterator(); each.hasNext(); ) {
      String path = (String) each.next();
      if (scan.struck.contains(path)) {
        into(struck, (Integer) scan.placeOf.get(path)).add(scan.file(path).fileName());
      }
    }
    Map after = new HashMap();
    for (Iterator each = ((List) JSON.readValue(added, List.class)).iterator(); each.hasNext(); ) {
      List pair = (List) each.next();
      into(after, (Integer) pair.get(1)).add(scan.output((String) pair.get(0)));
    }
    Set numbers = new HashSet(before.keySet());
    numbers.addAll(after.keySet());
    List messages = new ArrayList();
    for (Iterator each = numbers.iterator(); each.hasNext(); ) {
      Integer number = (Integer) each.next();
      Place place = scan.place(number.intValue());
      List newIndexes = new ArrayList();
      List oldIndexes = new ArrayList();
      if (struck.containsKey(number)) {
        dropVectors(table, scan, place, into(struck, number), newIndexes, oldIndexes);
      }
      CompactIncrement increment =
          new CompactIncrement(
              into(before, number), into(after, number), new ArrayList(), newIndexes, oldIndexes);
      messages.add(
          new CommitMessageImpl(
              place.partition,
              place.bucket,
              Integer.valueOf(place.totalBuckets),
              DataIncrement.emptyIncrement(),
              increment));
    }
    return messages;
  }

  /**
   * Index files without the vectors of these data files. They are those of the scanned snapshot: if newer ones
   * exist, the commit finds that its vectors are no longer the table's, and is refused.
   */
  private static void dropVectors(
      FileStoreTable table, Scan scan, Place place, List names, List newIndexes, List oldIndexes) {
    AppendDeleteFileMaintainer maintainer =
        BaseAppendDeleteFileMaintainer.forUnawareAppend(
            table.store().newIndexFileHandler(), scan.snapshot, place.partition);
    for (Iterator each = names.iterator(); each.hasNext(); ) {
      maintainer.notifyRemovedDeletionVector((String) each.next());
    }
    for (Iterator each = maintainer.persist().iterator(); each.hasNext(); ) {
      IndexManifestEntry entry = (IndexManifestEntry) each.next();
      (entry.kind() == FileKind.ADD ? newIndexes : oldIndexes).add(entry.indexFile());
    }
  }

  private static Map byPlace(Scan scan, List paths) {
    Map found = new HashMap();
    for (Iterator each = paths.iterator(); each.hasNext(); ) {
      String path = (String) each.next();
      into(found, (Integer) scan.placeOf.get(path)).add(scan.file(path));
    }
    return found;
  }

  private static List into(Map lists, Integer number) {
    List found = (List) lists.get(number);
    if (found == null) {
      found = new ArrayList();
      lists.put(number, found);
    }
    return found;
  }
}
